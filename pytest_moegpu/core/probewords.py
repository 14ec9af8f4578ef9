"""Words, facts and tasks that the generator of known-answer probes draws from, in English and Chinese."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CODE", "FACTS", "FUNCTIONS", "NAMES", "PHRASES", "SCHEMAS", "TRANSLATIONS", "WORDS", "CodeTask"]


WORDS = {
    "en": (
        *("stone", "garden", "window", "bridge", "candle", "mirror", "pocket", "basket", "ladder", "winter"),
        *("apple", "tiger", "lemon", "rocket", "violin", "carpet", "anchor", "feather", "hammer", "silver"),
    ),
    "zh": (
        *("天空", "河流", "石头", "花园", "窗户", "苹果", "老虎", "柠檬", "火箭", "地毯"),
        *("羽毛", "锤子", "冬天", "月亮", "图书", "汽车", "音乐", "海洋", "森林", "面包"),
    ),
}
"""Plain nouns, none of which stands in another."""

NAMES = {
    "en": ("Anna", "Ben", "Carl", "Dora", "Emma", "Frank", "Grace", "Henry", "Iris", "Jack"),
    "zh": ("小明", "小红", "小刚", "小丽", "小华", "小强", "小芳", "小军", "小燕", "小龙"),
}

PHRASES = {
    "en": (
        "The quick fox waits by the old mill",
        "Seven green bottles stand on the wall",
        "A small boat drifts under the stone bridge",
        "Nobody heard the clock strike eleven",
        "Fresh snow covered the narrow mountain road",
        "The baker opens his shop before sunrise",
    ),
    "zh": (
        "小船慢慢漂过古老的石桥",
        "清晨的集市里人来人往",
        "山路上盖着一层新雪",
        "没有人听见钟敲了十一下",
        "面包师在日出之前开门",
        "七只绿色的瓶子站在墙上",
    ),
}

SCHEMAS: dict[int, dict[str, str]] = {
    2: {
        "en": "{name} is {one} years old. "
        'Write this as a JSON object with the keys "name" (string) and "age" (integer).',
        "zh": "{name}今年{one}岁。请写成 JSON 对象，键为 name（字符串）和 age（整数）。",
    },
    3: {
        "en": "In stock: {one} x {first}, then {two} x {second}. Write this as a JSON array of objects with the keys "
        '"item" (string) and "count" (integer), in this order.',
        "zh": "库存：先是{first} {one} 个，然后是{second} {two} 个。请按此顺序写成 JSON 数组，"
        "每个对象的键为 item（字符串）和 count（整数）。",
    },
    4: {
        "en": "The owner {name} is {one}. The items are {first} and {second}. It is open. There is no note. Write this "
        'as a JSON object with the keys "owner" (object with "name" and "age"), "items" (array of strings), '
        '"open" (boolean) and "note" (null).',
        "zh": "店主{name}今年{one}岁。商品依次是{first}和{second}。现在营业。没有备注。请写成 JSON 对象，"
        "键为 owner（含 name 和 age 的对象）、items（字符串数组）、open（布尔值）和 note（null）。",
    },
}
"""Tier and language → what is to be written as JSON."""

TRANSLATIONS: dict[int, dict[str, tuple[tuple[str, tuple[str, ...]], ...]]] = {
    # English to French and to Spanish, by examples.
    1: {
        "en": (
            *(("cat", ("chat",)), ("house", ("maison",)), ("water", ("eau",)), ("book", ("livre",))),
            *(("bread", ("pain",)), ("night", ("nuit",)), ("red", ("rouge",)), ("milk", ("lait",))),
            *(("sun", ("soleil",)), ("hello", ("bonjour",)), ("school", ("école",)), ("love", ("amour",))),
        ),
        "zh": (
            *(("水", ("water",)), ("猫", ("cat",)), ("狗", ("dog",)), ("书", ("book",)), ("红色", ("red",))),
            *(("太阳", ("sun",)), ("你好", ("hello", "hi")), ("人", ("person", "people", "man", "human"))),
            *(("一", ("one",)), ("二", ("two",)), ("三", ("three",)), ("中国", ("china",))),
        ),
    },
    2: {
        "en": (
            *(("water", ("水",)), ("book", ("书", "書")), ("cat", ("猫", "貓")), ("fire", ("火",))),
            *(("moon", ("月亮", "月球", "月")), ("tea", ("茶",)), ("friend", ("朋友",)), ("school", ("学校", "學校"))),
        ),
        "zh": (
            *(
                ("老师", ("teacher",)),
                ("医院", ("hospital",)),
                ("飞机", ("airplane", "aeroplane", "plane", "aircraft")),
            ),
            *(("雨", ("rain",)), ("牛奶", ("milk",)), ("图书馆", ("library",)), ("桥", ("bridge",)), ("雪", ("snow",))),
        ),
    },
    3: {
        "en": (
            *(("umbrella", ("雨伞", "雨傘", "伞")), ("scientist", ("科学家",)), ("kitchen", ("厨房",))),
            *(("bicycle", ("自行车", "单车", "脚踏车")), ("butterfly", ("蝴蝶",)), ("language", ("语言",))),
        ),
        "zh": (
            *(("蝴蝶", ("butterfly",)), ("厨房", ("kitchen",)), ("科学家", ("scientist",)), ("地震", ("earthquake",))),
            *(("彩虹", ("rainbow",)), ("总统", ("president",)), ("温度计", ("thermometer",)), ("语言", ("language",))),
        ),
    },
    4: {
        "en": (
            *(("photosynthesis", ("光合作用",)), ("democracy", ("民主", "民主制", "民主主义"))),
            *(
                ("semiconductor", ("半导体", "半導體")),
                ("earthquake", ("地震",)),
                ("gravity", ("重力", "引力", "万有引力")),
            ),
        ),
        "zh": (
            *(("光合作用", ("photosynthesis",)), ("半导体", ("semiconductor", "semiconductors"))),
            *(("万有引力", ("gravitation", "gravity")), ("显微镜", ("microscope",)), ("蒸汽机", ("steam",))),
        ),
    },
}
"""Tier and language of the question → a word, and its translations that are right."""

_CAPITALS = (
    *(("Russia", "Moscow"), ("Egypt", "Cairo"), ("China", "Beijing"), ("Greece", "Athens"), ("Norway", "Oslo")),
    *(("Germany", "Berlin"), ("Italy", "Rome"), ("Austria", "Vienna"), ("Cuba", "Havana"), ("Poland", "Warsaw")),
)
_SYMBOLS = (
    *(("silver", "Ag"), ("sodium", "Na"), ("oxygen", "O"), ("hydrogen", "H"), ("copper", "Cu"), ("potassium", "K")),
    *(("tin", "Sn"), ("mercury", "Hg"), ("nitrogen", "N"), ("zinc", "Zn"), ("calcium", "Ca"), ("nickel", "Ni")),
    *(("sulfur", "S"), ("chlorine", "Cl"), ("magnesium", "Mg"), ("platinum", "Pt")),
)
_OPPOSITES = (
    *(("black", "white"), ("left", "right"), ("day", "night"), ("high", "low"), ("inside", "outside")),
    *(("open", "closed"), ("north", "south"), ("east", "west"), ("hot", "cold"), ("rich", "poor"), ("wet", "dry")),
)

FACTS: dict[int, dict[str, tuple[tuple[str, tuple[str, ...]], ...]]] = {
    1: {
        "en": (
            *((f"What is the capital of {land}?", (city,)) for land, city in _CAPITALS),
            *((f"What is the chemical symbol for {element}?", (f"is {sign}",)) for element, sign in _SYMBOLS),
            *((f"What is the opposite of {word}?", (other,)) for word, other in _OPPOSITES),
            *((f"Complete the sentence: The capital of {land} is", (city,)) for land, city in _CAPITALS),
        ),
        "zh": (
            ("法国的首都是什么？", ("巴黎",)),
            ("日本的首都是什么？", ("东京",)),
            ("中国的首都是什么？", ("北京",)),
            ("英国的首都是什么？", ("伦敦",)),
            ("一年有几个月？", ("12", "十二")),
            ("一个星期有几天？", ("7", "七")),
        ),
    },
    2: {
        "en": (
            ("Which planet is the largest of the solar system?", ("Jupiter",)),
            ("How many days does a leap year have?", ("366",)),
            ("Which gas do plants take in from the air to grow?", ("carbon dioxide", "CO2")),
            ("Who wrote Romeo and Juliet?", ("Shakespeare",)),
            ("What is the chemical symbol of sodium?", ("Na",)),
        ),
        "zh": (
            ("中国的首都是哪座城市？", ("北京",)),
            ("水的化学式是什么？", ("H2O",)),
            ("太阳系中最大的行星是哪一颗？", ("木星",)),
            ("一天有多少个小时？", ("24", "二十四")),
            ("中国最长的河流叫什么？", ("长江", "扬子江")),
        ),
    },
    3: {
        "en": (
            ("In which year did the Second World War end?", ("1945",)),
            ("What is the square root of 144?", ("12", "twelve")),
            ("Which element has the atomic number 26?", ("iron", "Fe")),
            ("Who painted the Mona Lisa?", ("Leonardo", "da Vinci")),
            ("What is the capital of Australia?", ("Canberra",)),
        ),
        "zh": (
            ("《红楼梦》的作者是谁？", ("曹雪芹",)),
            ("“床前明月光”的下一句是什么？", ("疑是地上霜",)),
            ("金的化学符号是什么？", ("Au",)),
            ("相对论是谁提出的？", ("爱因斯坦",)),
            ("澳大利亚的首都是哪座城市？", ("堪培拉",)),
        ),
    },
    4: {
        "en": (
            ("What is the capital of Kazakhstan?", ("Astana", "Nur-Sultan")),
            ("Which particle carries the electromagnetic force?", ("photon", "photons")),
            ("Who proved that general first-order arithmetic is incomplete, in 1931?", ("Gödel", "Godel", "Goedel")),
            ("How many chromosomes does a human body cell have?", ("46", "forty-six")),
        ),
        "zh": (
            ("《史记》的作者是谁？", ("司马迁",)),
            ("“会当凌绝顶”的下一句是什么？", ("一览众山小",)),
            ("人体细胞一般有多少条染色体？", ("46", "四十六")),
            ("圆周率小数点后的前四位是什么？", ("1415", "3.1415")),
        ),
    },
}
"""Tier and language → a question, and its answers that are right; none that an honest model might refuse."""

FUNCTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("add(a, b)", "a + b", ("add(2, 3) == 5", "add(-1, 1) == 0")),
    ("subtract(a, b)", "a - b", ("subtract(7, 2) == 5", "subtract(1, 5) == -4")),
    ("multiply(a, b)", "a * b", ("multiply(3, 4) == 12", "multiply(0, 9) == 0")),
    ("divide(a, b)", "a / b", ("divide(8, 2) == 4", "divide(1, 4) == 0.25")),
    ("square(x)", "x * x", ("square(3) == 9", "square(-5) == 25")),
    ("cube(x)", "x * x * x", ("cube(2) == 8", "cube(-3) == -27")),
    ("double(x)", "x * 2", ("double(4) == 8", "double(0) == 0")),
    ("increment(x)", "x + 1", ("increment(4) == 5", "increment(-1) == 0")),
    ("negate(x)", "-x", ("negate(4) == -4", "negate(-2) == 2")),
)
"""Head of a function, what it returns, and what must be true of it: shown and asked for by example."""


@dataclass(frozen=True, kw_only=True)
class CodeTask:
    """A function that is asked for in words, and what must be true of it."""

    en: str
    zh: str
    holds: tuple[str, ...]


CODE: dict[int, tuple[CodeTask, ...]] = {
    2: (
        CodeTask(
            en="is_even(n) that tells whether a whole number is even",
            zh="is_even(n)，判断整数是否为偶数",
            holds=("is_even(4) == True", "is_even(7) == False", "is_even(0) == True"),
        ),
        CodeTask(
            en="largest(a, b) that returns the larger of two numbers",
            zh="largest(a, b)，返回两个数中较大的一个",
            holds=("largest(3, 9) == 9", "largest(5, -2) == 5"),
        ),
        CodeTask(
            en="last(items) that returns the last item of a list",
            zh="last(items)，返回列表的最后一个元素",
            holds=("last([4, 8, 15]) == 15", "last(['x']) == 'x'"),
        ),
        CodeTask(
            en="backwards(text) that returns a string reversed",
            zh="backwards(text)，返回倒序的字符串",
            holds=("backwards('abc') == 'cba'", "backwards('') == ''"),
        ),
    ),
    3: (
        CodeTask(
            en="factorial(n) that returns the factorial of n",
            zh="factorial(n)，返回 n 的阶乘",
            holds=("factorial(0) == 1", "factorial(5) == 120"),
        ),
        CodeTask(
            en="count_vowels(text) that counts the vowels a, e, i, o, u of a lower-case string",
            zh="count_vowels(text)，统计小写字符串中元音字母 a、e、i、o、u 的个数",
            holds=("count_vowels('banana') == 3", "count_vowels('rhythm') == 0"),
        ),
        CodeTask(
            en="sum_of_evens(numbers) that returns the sum of the even numbers of a list",
            zh="sum_of_evens(numbers)，返回列表中所有偶数的和",
            holds=("sum_of_evens([1, 2, 3, 4]) == 6", "sum_of_evens([5]) == 0"),
        ),
        CodeTask(
            en="gcd(a, b) that returns the greatest common divisor of two positive whole numbers, without imports",
            zh="gcd(a, b)，不导入任何模块，返回两个正整数的最大公约数",
            holds=("gcd(12, 18) == 6", "gcd(7, 5) == 1"),
        ),
    ),
    4: (
        CodeTask(
            en="is_prime(n) that tells whether a whole number is prime",
            zh="is_prime(n)，判断整数是否为质数",
            holds=("is_prime(2) == True", "is_prime(49) == False", "is_prime(97) == True", "is_prime(1) == False"),
        ),
        CodeTask(
            en="fibonacci(n) that returns the n-th Fibonacci number, with fibonacci(0) = 0 and fibonacci(1) = 1",
            zh="fibonacci(n)，返回第 n 个斐波那契数，其中 fibonacci(0) = 0，fibonacci(1) = 1",
            holds=("fibonacci(0) == 0", "fibonacci(1) == 1", "fibonacci(12) == 144"),
        ),
        CodeTask(
            en="second_largest(numbers) that returns the second largest of the different numbers of a list",
            zh="second_largest(numbers)，返回列表中去重后第二大的数",
            holds=("second_largest([4, 9, 9, 7]) == 7", "second_largest([1, 2]) == 1"),
        ),
        CodeTask(
            en="to_binary(n) that returns a whole number from 0 on as a string of binary digits, without bin or format",
            zh="to_binary(n)，不使用 bin 和 format，把非负整数转换成二进制数字的字符串",
            holds=("to_binary(0) == '0'", "to_binary(10) == '1010'"),
        ),
    ),
}
"""Tier → functions asked for in words."""
