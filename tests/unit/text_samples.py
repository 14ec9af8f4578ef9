"""Honest texts of many forms and languages, and broken ones of many kinds, written for the tests of the signs."""

from __future__ import annotations

import json
import random

_DRAWN = random.Random(11)
_SAID = "river quietly of theory under seven lamp the because window forgets never into yellow at market copper"
_WORDS = _SAID.split(" ")


def _drawn(words: list[str], count: int, between: str = " ") -> str:
    return between.join(_DRAWN.choice(words) for _ in range(count))


PLAIN = (
    "The bridge was built in the spring, when the river was low. Workers carried stones from the hill and set them one "
    "by one. After two years the first carts could cross, and the town began to grow on both sides of the water."
)

HONEST: list[tuple[str, str, str]] = [
    ("English", PLAIN, "Tell me about the bridge."),
    (
        "German",
        "Der Zug fährt um acht Uhr ab und kommt am Abend in Wien an. Wir haben zwei Plätze am Fenster reserviert, "
        "damit wir die Berge sehen können.",
        "Wann fährt der Zug?",
    ),
    (
        "French",
        "Le marché ouvre tôt le matin et les habitants viennent y acheter des légumes, du pain et du fromage. "
        "On y parle aussi beaucoup du temps qu'il fait.",
        "Décris un marché.",
    ),
    (
        "Spanish",
        "La biblioteca está cerca de la plaza y abre todos los días. Los estudiantes van allí para leer y para "
        "preparar sus exámenes con calma.",
        "¿Dónde está la biblioteca?",
    ),
    (
        "Italian",
        "Il caffè è una delle bevande più amate in Italia. Si beve al banco, spesso in piedi, e costa poco.",
        "Parlami del caffè.",
    ),
    (
        "Portuguese",
        "O pão é feito com farinha, água, sal e fermento. Depois de descansar, a massa vai para o forno quente.",
        "Como se faz pão?",
    ),
    (
        "Dutch",
        "De fiets is in Nederland het meest gebruikte vervoermiddel voor korte afstanden. Er zijn veel aparte paden.",
        "Waarom fietsen Nederlanders?",
    ),
    (
        "Swedish",
        "På vintern är dagarna korta och det är ofta kallt. Många åker skidor eller dricker kaffe med vänner.",
        "Berätta om vintern.",
    ),
    (
        "Polish",
        "Wiosną ptaki wracają z ciepłych krajów i budują gniazda na drzewach. Dzieci bawią się w parku do wieczora.",
        "Opisz wiosnę.",
    ),
    (
        "Czech",
        "Hrad stojí na kopci nad řekou a je vidět z celého města. V létě se tam konají koncerty a trhy.",
        "Popiš hrad.",
    ),
    (
        "Turkish",
        "Çay, ülkede en çok içilen içeceklerden biridir ve günün her saatinde sunulur. İnce belli bardakta içilir.",
        "Çayı anlat.",
    ),
    (
        "Vietnamese",
        "Cà phê là thức uống rất phổ biến ở đây và được trồng nhiều trên các vùng cao nguyên.",
        "Cà phê là gì?",
    ),
    (
        "Indonesian",
        "Nasi goreng adalah makanan yang sangat terkenal dan dapat ditemukan di banyak warung di kota ini.",
        "Apa itu nasi goreng?",
    ),
    (
        "Hungarian",
        "A Duna két részre osztja a várost, és a hidak nagyon szépek este, amikor ki vannak világítva.",
        "Budapest?",
    ),
    (
        "Finnish",
        "Talvella järvet jäätyvät ja lapset luistelevat niillä. Kesällä aurinko ei laske lainkaan pohjoisessa.",
        "Kerro Suomesta.",
    ),
    (
        "Russian",
        "Поезд отправляется утром и прибывает вечером. Мы взяли билеты у окна, чтобы смотреть на горы.",
        "Когда поезд?",
    ),
    (
        "Greek",
        "Η θάλασσα είναι ήρεμη το πρωί και τα καράβια φεύγουν από το λιμάνι για τα νησιά.",
        "Πες μου για τη θάλασσα.",
    ),
    ("Hebrew", "הספרייה נמצאת ליד הכיכר ופתוחה בכל יום. התלמידים באים לקרוא וללמוד בשקט.", "איפה הספרייה?"),
    (
        "Arabic",
        "تقع المكتبة قرب الساحة وتفتح أبوابها كل يوم، ويأتي الطلاب إليها للقراءة والدراسة في هدوء.",
        "أين المكتبة؟",
    ),
    ("Hindi", "पुस्तकालय चौक के पास है और हर दिन खुला रहता है। छात्र वहाँ पढ़ने और तैयारी करने जाते हैं।", "पुस्तकालय कहाँ है?"),
    ("Thai", "ห้องสมุดอยู่ใกล้จัตุรัสและเปิดทุกวัน นักเรียนไปอ่านหนังสือและเตรียมสอบที่นั่น", "ห้องสมุดอยู่ที่ไหน"),
    (
        "Chinese",
        "图书馆在广场旁边，每天都开放。学生们去那里看书，也准备考试。馆里很安静，还有许多旧报纸可以查阅。老人们喜欢坐在窗边聊天，"
        "偶尔也会下棋。到了周末，志愿者会给孩子们讲故事。",
        "图书馆在哪里？",
    ),
    ("Classical Chinese", "学而时习之，不亦说乎？有朋自远方来，不亦乐乎？人不知而不愠，不亦君子乎？", "背诵论语开头。"),
    (
        "Japanese",
        "図書館は広場の近くにあり、毎日開いています。学生たちはそこで本を読み、静かに試験の準備をします。",
        "図書館はどこですか。",
    ),
    (
        "Korean",
        "도서관은 광장 근처에 있고 매일 문을 엽니다. 학생들은 그곳에서 책을 읽고 시험을 준비합니다.",
        "도서관은 어디에 있나요?",
    ),
    (
        "Latin",
        "Gallia est omnis divisa in partes tres, quarum unam incolunt Belgae, aliam Aquitani, tertiam qui ipsorum "
        "lingua Celtae appellantur.",
        "Quote Caesar.",
    ),
    (
        "poem",
        "The night is cold, the lamp is low,\nA ship goes out upon the tide;\nI watch the little lanterns go\n"
        "Across the dark on every side.",
        "Write a poem about the sea.",
    ),
    (
        "lyrics",
        "Hey, hey, the road is long,\nHey, hey, we sing our song,\nHey, hey, the road is long,\nHey, hey, we carry on.",
        "Write song lyrics.",
    ),
    ("haiku", "An old silent pond\nA frog jumps into the pond\nSplash! Silence again.", "A haiku by Basho."),
    (
        "regexes",
        "^\\d{4}-\\d{2}-\\d{2}$\n^[a-z0-9_-]{3,16}$\n^(?:\\+?1[-. ]?)?\\(?(\\d{3})\\)?[-. ]?(\\d{3})[-. ]?(\\d{4})$",
        "Give me three regexes.",
    ),
    (
        "hex dump",
        "00000000  7f 45 4c 46 02 01 01 00  00 00 00 00 00 00 00 00  |.ELF............|\n"
        "00000010  03 00 3e 00 01 00 00 00  10 10 00 00 00 00 00 00  |..>.............|",
        "Show a hex dump of an ELF header.",
    ),
    (
        "LaTeX",
        "\\begin{align}\n\\nabla \\cdot \\mathbf{E} &= \\frac{\\rho}{\\varepsilon_0} \\\\\n\\nabla \\times \\mathbf{B} "
        "&= \\mu_0 \\mathbf{J}\n\\end{align}",
        "Maxwell's equations in LaTeX.",
    ),
    (
        "SQL",
        "SELECT c.name, COUNT(o.id) AS orders\nFROM customers c\nLEFT JOIN orders o ON o.customer_id = c.id\n"
        "WHERE o.created_at >= '2024-01-01'\nGROUP BY c.name\nHAVING COUNT(o.id) > 3;",
        "A query for frequent customers.",
    ),
    (
        "YAML",
        'services:\n  web:\n    image: nginx:1.25\n    ports:\n      - "80:80"\n  db:\n    image: postgres:16\n'
        "    environment:\n      POSTGRES_PASSWORD: example",
        "A compose file.",
    ),
    (
        "CSV",
        "id,name,city,amount\n1,Ana,Oslo,12.50\n2,Ben,Riga,7.00\n3,Kira,Lima,19.99\n4,Dev,Quito,3.25",
        "Sample CSV.",
    ),
    (
        "diff",
        "--- a/main.py\n+++ b/main.py\n@@ -1,4 +1,4 @@\n def main():\n-    print('hello')\n+    print('hello, world')\n"
        "     return 0",
        "Show a diff.",
    ),
    (
        "stack trace",
        'Traceback (most recent call last):\n  File "app.py", line 12, in <module>\n    main()\n  File "app.py", '
        "line 8, in main\n    value = data['key']\nKeyError: 'key'",
        "Example of a Python traceback.",
    ),
    (
        "URLs",
        "https://example.org/docs/start\nhttps://example.org/docs/install?os=linux&v=2\nhttps://example.net/a/b#c",
        "Three example links.",
    ),
    (
        "chess",
        "1. e4 e5 2. Nf3 Nc6 3. Bb5 a6 4. Ba4 Nf6 5. O-O Be7 6. Re1 b5 7. Bb3 d6 8. c3 O-O 9. h3 Na5 10. Bc2 c5",
        "A Ruy Lopez in chess notation.",
    ),
    ("DNA", "ATGCGTACGTTAGCCTAGGATCCGATTACAGGCTTAACGTACCGGTATTCGA", "Give me a random DNA string of 51 bases."),
    (
        "digits of pi",
        "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899",
        "80 digits of pi.",
    ),
    ("factorial", "30! = 265252859812191058636308480000000", "What is 30!?"),
    ("emoji", "🍎🍌🍇🍓🍒🍍🥝🍑", "Fruit emoji, please."),
    (
        "roman numerals",
        "I, II, III, IV, V, VI, VII, VIII, IX, X, XI, XII, XIII, XIV, XV, XVI, XVII, XVIII, XIX, XX",
        "Roman numerals to 20.",
    ),
    (
        "phone list",
        "Ana Kirsch: +49 30 1234567\nBen Osei: +233 20 555 0199\nMei Tan: +65 6123 4567",
        "Make up a phone list.",
    ),
    (
        "ASCII tree",
        "project/\n├── src/\n│   ├── main.py\n│   └── util.py\n├── tests/\n│   └── test_main.py\n└── README.md",
        "Show a project tree.",
    ),
    ("ASCII art", " /\\_/\\\n( o.o )\n > ^ <", "Draw a cat in ASCII."),
    ("base64", "VGhlIHF1aWNrIGJyb3duIGZveCBqdW1wcyBvdmVyIHRoZSBsYXp5IGRvZy4=", "Encode it in base64."),
    (
        "JWT",
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
        "Show an example token.",
    ),
    (
        "minified JS",
        "const f=(e,t)=>{let n=0;for(const r of e)n+=r*t;return n},g=e=>e.map(e=>f(e,2)).filter(Boolean);export{f,g};",
        "Minify this.",
    ),
    (
        "Rust",
        "fn main() {\n    let xs: Vec<u32> = (1..=5).collect();\n    let sum: u32 = xs.iter().sum();\n"
        '    println!("{sum}");\n}',
        "Sum numbers in Rust.",
    ),
    (
        "Haskell",
        "quicksort :: Ord a => [a] -> [a]\nquicksort [] = []\nquicksort (p:xs) = quicksort [x | x <- xs, x < p] ++ [p]",
        "Quicksort in Haskell.",
    ),
    (
        "assembly",
        "section .text\nglobal _start\n_start:\n    mov rax, 60\n    xor rdi, rdi\n    syscall",
        "Exit in x86 assembly.",
    ),
    (
        "HTML",
        '<ul>\n  <li><a href="/">Home</a></li>\n  <li><a href="/about">About</a></li>\n  </ul>',
        "A menu in HTML.",
    ),
    (
        "XML",
        '<?xml version="1.0"?>\n<note>\n  <to>Ana</to>\n  <from>Ben</from>\n  <body>See you on Friday.</body>\n</note>',
        "A note as XML.",
    ),
    (
        "JSON",
        json.dumps([{"id": i, "name": f"item {i}", "ok": True} for i in range(12)], indent=2),
        "12 items as JSON.",
    ),
    ("nested JSON", json.dumps({"a": {"b": {"c": {"d": [1, [2, [3, [4]]]]}}}}, indent=2), "Deeply nested JSON."),
    (
        "table",
        "| Planet | Moons |\n|---|---|\n| Earth | 1 |\n| Mars | 2 |\n| Jupiter | 95 |\n| Saturn | 146 |",
        "Moons as a table.",
    ),
    ("countdown", "10\n9\n8\n7\n6\n5\n4\n3\n2\n1\nLift-off!", "Count down from 10."),
    (
        "names",
        "Amelia, Benedikt, Chiara, Dmitri, Esperanza, Farouk, Giulia, Hiroshi, Ingrid, Joaquín, Kwame, Leilani",
        "Twelve first names.",
    ),
    (
        "drugs",
        "Ibuprofen, paracetamol, amoxicillin, metformin, atorvastatin, omeprazole, lisinopril, levothyroxine",
        "Name eight medicines.",
    ),
    ("chemistry", "The overall reaction is 6 CO₂ + 6 H₂O → C₆H₁₂O₆ + 6 O₂, driven by light.", "Photosynthesis?"),
    ("physics", "E = mc², so 1 kg corresponds to about 9 × 10¹⁶ J. Here c ≈ 3 × 10⁸ m/s.", "Energy of 1 kg?"),
    (
        "commands",
        "sudo apt-get update && sudo apt-get install -y build-essential cmake git\ngit clone https://example.org/x.git",
        "How do I set this up?",
    ),
    (
        "recipe",
        "Ingredients:\n- 200 g flour\n- 2 eggs\n- 300 ml milk\n- 1 pinch of salt\n\nMix everything and let it rest.",
        "Pancake recipe.",
    ),
    (
        "dialogue",
        '"Are you coming?" she asked.\n"No," he said. "No, no, no. Not today."\n"Why not?"\n"Because it rains."',
        "Write a dialogue.",
    ),
    ("headline case", "Ten Things You Should Know Before You Buy Your First House", "A headline, please."),
    ("shouting", "WARNING: DO NOT OPEN THIS DOOR. HIGH VOLTAGE. KEEP OUT.", "A warning sign."),
    ("informal", "lol yeah, i dunno tbh... maybe we could just, like, meet at 8?? idk :)", "Write a casual message."),
    (
        "names of places",
        "Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch is a village on Anglesey in Wales.",
        "Longest place name?",
    ),
    (
        "German compound",
        "Donaudampfschifffahrtsgesellschaft ist ein sehr langes deutsches Wort, das gern als Beispiel dient.",
        "Nenne ein langes Wort.",
    ),
    (
        "mixed terms",
        "请先运行 pip install torch，然后用 python train.py --epochs 3 开始训练，日志会写到 logs/ 目录。",
        "怎么训练？",
    ),
    ("translation", "dog — 狗\ncat — 猫\nhorse — 马\nbird — 鸟\nfish — 鱼", "Translate five animals into Chinese."),
    (
        "tongue twister",
        "She sells seashells by the seashore, and the shells she sells are seashells, I'm sure.",
        "A tongue twister.",
    ),
    ("no", "No.", "Is it raining?"),
    (
        "cut off",
        "The committee met on Tuesday to discuss the budget, and after three hours of talks it was deci",
        "What happened?",
    ),
]
"""Name, text, prompt."""

_BITS = [
    " the",
    "ing",
    " preserv",
    "ayette",
    " retros",
    "iveness",
    '""")',
    "ob",
    " Nic",
    "}{",
    "opies",
    "NA",
    "isk",
    " Th",
]
_SCRIPT_BITS = [
    "канал",
    "系统",
    "window",
    "데이터",
    " बात",
    "def",
    "频道",
    "שלום",
    "processo",
    "ไทย",
    " السوق",
    "engine",
]

BROKEN: list[tuple[str, str, str]] = [
    ("one letter", "G" * 80, "Who wrote Faust?"),
    ("full-width", "！" * 60, "Who wrote Faust?"),
    ("good then one", PLAIN[:60] + "@" * 60, "Tell me of it."),
    ("newlines", PLAIN[:60] + "\n" * 60, "Tell me of it."),
    ("tabs", PLAIN[:40] + "\t" * 80, "Tell me of it."),
    ("blank", "   \n  ", "Tell me of it."),
    ("word loop", "It was late. " + "and then " * 40, "Tell me a story."),
    ("sentence loop", "They went home. " * 20, "Tell me a story."),
    ("paragraph loop", (PLAIN + "\n\n") * 4, "Tell me of it."),
    (
        "shrinking loop",
        "wait, they said yes. " * 5 + "wait, they said " * 4 + "wait, they " * 5 + "wait, " * 12,
        "Who?",
    ),
    (
        "loop with small changes",
        " ".join(f"The {w} was very old and very tired." for w in ["man", "dog", "man", "cat"] * 6),
        "A story.",
    ),
    (
        "case changes",
        "hello Hello HELLO hello hELLO Hello hello HELLO hello Hello hello hello HELLO Hello hello hello " * 2,
        "Who?",
    ),
    (
        "counting up a loop",
        "".join(f"I went to the shop and I bought a loaf of bread {i}. " for i in range(24)),
        "A story.",
    ),
    ("Chinese loop", "今天天气很好，我们去公园。" * 15, "写一个故事。"),
    (
        "replacement characters",
        "The ri\ufffder was l\ufffd\ufffdw and the st\ufffdnes were h\ufffdavy.",
        "Tell me of it.",
    ),
    ("half-broken UTF-8", "茶是\ufffd\ufffd界上最古\ufffd的饮料之一。绿茶不\ufffd\ufffd过发酵。", "介绍茶。"),
    ("mojibake of French", "Le marchÃ© ouvre tÃ´t et les Ã©lÃ¨ves viennent Ã\xa0 pied.", "Décris un marché."),
    (
        "mojibake of quotes",
        "He said â€œnoâ€\x9d and that was that. It wasnâ€™t fair, and itâ€™s late.",
        "What did he say?",
    ),
    ("mojibake of Chinese", "ä½\xa0å¥½ä¸–ç•Œï¼Œæ¬¢è¿Žæ\x9d¥åˆ°è¿™é‡Œã€‚", "Say hello in Chinese."),
    ("controls", "The \x03bri\x07dge \x10was \x1abuilt.", "Tell me of it."),
    ("NUL bytes", "The bridge\x00\x00\x00\x00 was built", "Tell me of it."),
    ("surrogates", "The bridge \ud83d was built \ud83d in the \udc4d spring", "Tell me of it."),
    ("private use", "The \ue000\ue001 bridge \ue123 was built", "Tell me of it."),
    ("pads", "<pad>" * 30, "Tell me of it."),
    ("template leak", "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nHi<|im_end|>", "Tell me of it."),
    ("unused tokens", "".join(f"<unused{i}>" for i in range(9)), "Tell me of it."),
    ("closing tags", "It is so</think>" + "</think>" * 20, "Tell me of it."),
    (
        "punctuation soup",
        "".join(_DRAWN.choice("!#$%&'()*+,-./:;<=>?@[]^_{|}~0123456789") for _ in range(150)),
        "Tell me.",
    ),
    ("dashes and commas", "-,,'s--,_-,'-_,,-'s,-_'-,--,'_,-,'s,-_-,,'-,_'-,-,'s--,_,-'", "Tell me."),
    ("script salad", _drawn(_SCRIPT_BITS, 60), "Tell me of it."),
    ("glued script salad", _drawn(_SCRIPT_BITS, 40, ""), "Tell me of it."),
    ("underscores", _drawn(["user", "count", "index", "total", "node", "price"], 40, "_"), "Add two numbers."),
    ("hyphens", "The Golden-" + _drawn(["C", "O", "B", "P", "L"], 60, "-"), "Tell me of it."),
    ("random words", _drawn(_WORDS, 80), "Tell me a story."),
    ("tokenizer pieces", _drawn(_BITS, 160, ""), "Tell me of it."),
    ("shuffled", " ".join(_DRAWN.sample((PLAIN * 2).split(), 70)), "Tell me of it."),
    ("fade into pieces", PLAIN + _drawn(_BITS, 60, ""), "Tell me of it."),
    ("fade into words", PLAIN * 2 + " " + _drawn(_WORDS, 90), "Tell me of it."),
    ("letters", "".join(_DRAWN.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(200)), "Tell me of it."),
    ("random Chinese", _drawn(list("的一是在不了有和人这中大为上个国我以要他时来用们"), 120, ""), "介绍茶。"),
    ("JSON without end", '{"users": [{"id": 1, "name": "Ana"}, ' + '{"id": 1, "id": 1, ' * 20, "Users as JSON."),
    ("endless nesting", '{"a": ' * 60, "A record as JSON."),
    ("brackets", '{"users": ' + "[" * 80, "Users as JSON."),
    ("JSON torn", '{"name"\n\n   : "Ana", "age"\n :\t\t\t 3,\n\n"city"\n\n : "Oslo"}', "A user as JSON."),
    ("empty cells", "| a | b |\n|---|---|\n" + "| " * 90, "Make a table."),
    ("skeleton", "##\n\n" * 40, "Write an article."),
    ("empty bullets", "Here are ten tips:\n" + "- **:**\n" * 30, "Ten tips for sleep."),
]
"""Name, text, prompt; each is bad or suspect, most are bad."""
