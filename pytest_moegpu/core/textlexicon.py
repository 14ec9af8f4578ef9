"""Small words of languages and pairs of Chinese characters, written down by hand: by these a language is recognised."""

from __future__ import annotations

__all__ = ["ENGLISH", "HAN_PAIRS", "LANGUAGES"]

_ENGLISH = """
    the of and to a in is that it for was on are as with be by this from or at an have not which you can has
    they their but all more will its your one if we also other may when there who used been such use some into
    these how what many he his she her them would should could than then about so up out no do does did most
    over between through each where while after before because both only like very any my me our us him i were
    had just own same those during under within without make made get go new first two way time people even much
    well too here why every since until against upon among often still another around using being less must
    might few several back down off again never always however important including different help need know
    think see good world life work day long part example let want am now shall yes please along across per via
    rather whether though although yet nor once three four five next last something someone anything nothing
    everything themselves himself itself it's don't can't i'm you're that's there's we're they're isn't doesn't
    won't didn't i've you'll
"""
ENGLISH = tuple(_ENGLISH.split())
"""The commonest words of English, each a word class of its own."""

_WORDS = {
    "de": """
    der die das und ist nicht ein eine einen einem einer zu den dem des mit sich auf für von im es sie wir ich
    auch als an werden wird aus er hat dass nach bei um am sind noch wie oder aber so wenn nur kann über zum zur
    man durch mehr vor haben bis ihre ihr sein war schon wer alle uns diese dieser dieses sehr hier was mir
    """,
    "fr": """
    le la les de des du un une et est en que qui dans pour pas sur au avec ce il elle nous vous je ne se plus
    par sont cette ou mais comme son sa ses leur on être fait aux ont tout bien aussi même très peut sans entre
    ces où si c'est d'un d'une l'on n'est qu'il ils
    """,
    "es": """
    el la los las de del y en un una que es se por con para no su al lo como más pero sus le ya o este sí porque
    esta entre cuando muy sin sobre también me hasta hay donde quien desde todo nos durante todos uno ni ese eso
    ella son fue está ser tiene puede han
    """,
    "it": """
    il lo la i gli le di del della dei delle e è un una che in per non si con da al alla sono nel nella come più
    ma anche ha questo questa su dal dalla ci o se molto essere quando tutti suo sua loro cui dove ogni perché
    """,
    "pt": """
    o a os as de do da dos das e em um uma que é se por com para não no na nos nas mais como mas ao sua seu ou
    quando muito já também só pelo pela até isso ela entre depois sem mesmo são está ser tem foi
    """,
    "nl": """
    de het een en van in is dat op te zijn met voor niet aan er die om ook als maar door bij uit naar dan nog
    wel kan worden wordt over hij zij we je ik ze hun dit deze veel meer heeft hebben was
    """,
    "sv": """
    och att det i en som på är av för den med till inte om ett har de jag var men så från man vi kan när nu
    eller också efter hon han skulle mycket där alla vara vid blir deras
    """,
    "da": """
    og at det i en som på er af for den med til ikke om et har de jeg var men så fra man vi kan når nu eller
    også efter hun han meget der alle være ved bliver deres fordi
    """,
    "no": """
    og at det i en som på er av for den med til ikke om et har de jeg var men så fra man vi kan når nå eller
    også etter hun han mye der alle være ved blir deres fordi
    """,
    "pl": """
    i w na z się nie do to że jest o jak po co ale od za tak dla przez są być które który która ich jego także
    oraz jej może tylko lub już bardzo gdy czy przy tym tego było
    """,
    "cs": """
    a v na se je že s z do o to i ve pro jako po ale za si by tak od jsou být které který jeho jejich také nebo
    může jen když při není byl bylo jsme velmi
    """,
    "tr": """
    ve bir bu da de için ile çok daha olarak en gibi kadar var olan ne o ama her sonra ya ki mi değil olur
    tarafından ise hem göre önce bile çünkü şey
    """,
    "ro": """
    și de la în a cu pe nu o un este care din că pentru mai se ce sunt ca sau dar au fi am prin după dacă foarte
    lui ei acest această poate
    """,
    "hu": """
    a az és egy hogy nem is van ez meg de el csak már mint ha fel ki vagy még lehet minden után amely volt azt
    nagyon ezt aki kell ami
    """,
    "fi": """
    ja on ei se että oli hän mutta kun joka ovat tai niin myös voi kuin ole sitä jos mukaan sen ne tämä hyvin
    kaikki vain sekä jotka
    """,
    "id": """
    yang dan di dari untuk dengan ini itu pada tidak dalam adalah ke akan oleh juga atau bisa dapat karena lebih
    mereka sebagai kita ada kami saya sangat banyak telah
    """,
    "vi": """
    và của là có không được các cho một trong với người những này đã khi để từ đến cũng như về ra thì sẽ nhiều
    rất tôi hay vào bạn tại đó năm
    """,
    "ca": """
    el la els les de del i en un una que és es per amb no al com més però seu seva o també molt quan aquest
    aquesta són ha pot
    """,
    "hr": """
    i u na je se da su za od s a ne to kao što ili iz o po ali sve koji koja koje nije može biti vrlo jer
    """,
    "la": """
    et in est non ad ut cum quod qui ex sed quae si per esse aut ab enim sunt hoc nec etiam de atque
    """,
    "sw": """
    ya na wa kwa ni la katika za kuwa cha hii yake watu au kama hiyo sana pia hata lakini mtu yao
    """,
    "tl": """
    ang ng sa na mga ay at si ito para hindi kung may siya ko mo ni isang niya kaya
    """,
    "eo": """
    la de kaj en estas ne al mi ke vi por kun li kiu ĝi pri el sed tiu ĉi povas
    """,
}
LANGUAGES = {name: frozenset(words.split()) for name, words in _WORDS.items()}
"""Language of Latin script other than English → its small words."""

_HAN = """
    一下 一个 一些 一样 一次 一点 一种 一般 三个 上学 上班 上面 下午 下来 下班 下载 下面
    不仅 不会 不同 不是 不能 不要 不过 世界 东西 两个 中午 中国 为了 为什 主要 之一 之前
    之后 之间 也是 习惯 书籍 了解 事情 于是 人们 人类 什么 今天 今年 介绍 仍然 从而 他们
    代码 以上 以下 以前 以及 以后 任务 休息 传统 但是 作为 作用 你们 你好 使用 例如 依然
    保护 信息 健康 先生 全部 公司 关于 关系 关闭 其中 其次 内存 再见 写作 农村 冬天 决定
    准备 减少 出去 出来 函数 分钟 前面 加入 动物 包含 包括 医生 医院 危险 历史 原因 发展
    发现 变得 变成 只是 只有 只要 可以 可能 各种 同时 后面 听到 告诉 味道 喜欢 喝茶 回家
    回来 回答 因为 因此 困难 国家 图书 地区 地方 地球 地面 城市 基本 增加 复杂 夏天 外面
    多种 大家 大小 大海 大约 天气 太阳 好吃 如何 如果 季节 学习 学校 学生 孩子 它们 安全
    安装 家人 容易 对不 对于 小时 小说 就是 属于 山上 工作 左右 已经 希望 帮助 常常 并且
    幸福 应该 开始 影响 往往 很多 得到 必须 快乐 怎么 总是 情况 想到 感谢 慢慢 成为 我们
    或者 所以 所有 打开 技术 按照 接着 提供 提高 改变 放入 政治 故事 教育 数据 数量 整个
    文件 文化 文字 文章 新年 方便 方式 方法 旅行 早上 早晨 时候 时间 明天 星星 春天 昨天
    显存 晚上 更加 最后 月亮 有时 朋友 服务 根据 森林 植物 模型 正在 步骤 每个 每天 比如
    比赛 比较 水分 水平 水果 汽车 没关 没有 河流 活动 海洋 温度 漂亮 火车 然后 然而 父母
    特别 环境 现在 理解 甚至 生活 用户 由于 电力 电影 电脑 白色 目标 目的 相同 看到 睡眠
    知道 研究 社会 祝福 秋天 种类 科学 程序 程度 空气 第一 第三 第二 简单 米饭 类型 系统
    红色 红茶 经常 经济 结束 结果 绿茶 网站 网络 美丽 老师 而且 而是 能够 能源 自己 自然
    艺术 节日 茶叶 蔬菜 虽然 表示 觉得 计划 计算 认为 许多 语言 说明 请问 谢谢 质量 起来
    身体 软件 输入 输出 过来 过程 运动 运行 还是 还有 这个 这些 进入 进行 远处 适合 适量
    选择 逐渐 通过 速度 道路 那个 那些 部分 都是 里面 重要 锅中 锻炼 长度 问题 阅读 阳光
    阶段 附近 随着 需要 非常 面条 面积 音乐 颜色 飞机 食物 首先 香气 高度 黑色
"""
HAN_PAIRS = frozenset(_HAN.split())
"""Common pairs of neighbouring characters in Chinese."""
