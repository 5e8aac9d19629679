"""A built-in corpus of texts that tokenizers disagree on. Data only."""

from __future__ import annotations

_WORDS = {
    "english": "The quick brown fox jumps over the lazy dog; it's 12:30, isn't it?",
    "german": "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "french": "Dès Noël, où un zéphyr haï me vêt de glaçons würmiens…",
    "polish": "Zażółć gęślą jaźń",
    "vietnamese": "Tôi có thể ăn thủy tinh mà không hại gì.",
    "turkish": "İstanbul'da ılık bir ağustos günü",
    "russian": "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "greek": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία",
    "arabic": "نص حكيم له سر قاطع وذو شأن عظيم",
    "hebrew": "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "hindi": "मैं काँच खा सकता हूँ और मुझे उससे कोई चोट नहीं पहुंचती।",
    "thai": "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า",
    "chinese": "我能吞下玻璃而不伤身体。天地玄黄，宇宙洪荒。",
    "japanese": "いろはにほへと ちりぬるを、カタカナと漢字。",
    "korean": "키스의 고유조건은 입술끼리 만나야 하고",
    "amharic": "ሰማይ አይታረስ ንጉሥ አይከሰስ።",
    "mathematics": "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β ⇒ ∫₀^∞ e^{-x²} dx = √π/2",
    "currencies": "€1.234,56 ¥9000 £5 ₹100 ₿0.1 50¢",
    "emoji": "😀😃 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 👍🏽 ❤️ ☺ ⚠️",
    "combining marks": "e\u0301 a\u0308\u0323 Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d",
    "precomposed and not": "é e\u0301 ﬁ fi Å \u212b",
    "unassigned and private": "\u0378 \ue000 \U000f0000 \U0010ffff",
    "plane 1": "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𓀀 𝟘𝟙𝟚",
    "zero width": "a\u200bb\u200cc\u200dd\ufeffe\u2060f",
    "directions": "abc \u202eDEF\u202c ghi \u2067אבג\u2069",
    "odd spaces": "a\u00a0b\u2003c\u2009d\u3000e\u1680f\u205fg",
    "the space mark itself": "▁a▁▁b ▁ c▁",
    "line separators": "a\u2028b\u2029c\u0085d\x0be\x0cf",
    "control characters": "".join(chr(c) for c in range(1, 32) if c not in (9, 10, 13)) + "\x7f",
    "nul": "a\x00b",
    "numbers": "0 00 007 1234567890 3.14159 1e-10 0x1F 1_000_000 ١٢٣ 一二三 ²³",
    "long number": "1234567890" * 20,
    "url": "https://example.org:8080/a/b?c=d&e=%20f#g user@example.com",
    "python": 'def f(x: int) -> str:\n\tif x:\n\t\treturn f"{x!r:>10}"\n    return None\n',
    "c": '#include <stdio.h>\nint main(void) {\n  printf("%d\\n", 1<<3);\n}\n',
    "json": '{"a": [1, 2.5, null, true], "b": {"c": "\\u00e9\\n"}}',
    "html": "<table><tr><td>a</td></tr></table><br/><code>x</code></s> <s>struck</s> <b>bold</b>",
    "latex": "\\begin{align}\nx &= \\frac{1}{2} \\\\\n\\end{align}",
    "markdown": "# Title\n\n* a\n  * b\n\n```sh\nls -l\n```\n| a | b |\n|---|---|",
    "quotes": "\"'`´‘’“”«»‹›„‚ --- – — … ...",
    "brackets": "[multimodal] [1] [[x]] (a) {b} <c> <<d>>",
    "byte tokens spelled out": "<0x41> <0x0A><0xFF>",
    "unused tokens spelled out": "<unused0> <unused99> [@BOS@]",
    "marks spelled out": "<bos><eos><pad><unk><mask>",
    "gemma 4 marks": "<|turn>user\nhi<turn|>\n<|channel>thought\n<channel|><|think|>",
    "gemma 4 tools": '<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|><|tool_response>',
    "gemma 3 marks": "<start_of_turn>user\nhi<end_of_turn>\n<start_of_image>",
    "half marks": "<|turn <turn| |turn> <|tur n> <| turn> <start_of_turn",
    "marks beside words": "a<bos>b <eos>c d<eos> e",
    "one long word": "x" * 3000,
    "two letters, long": "ab" * 2000,
    "long run of a wide character": "我" * 500,
    "upper and lower": "aAaAAaAAAa STRASSE straße ǅ",
    "camel and snake": "camelCaseWordsHTTPServer snake_case_words SCREAMING_CASE kebab-case",
    "punctuation run": "!!!???...,,,;;;:::---___***###@@@",
    "trailing space": "text ",
    "leading space": " text",
    "spaces only": "     ",
    "space before newline": "a \n b \n\n  c",
    "tab and space": "\t \t\t  \t",
    "cr lf": "a\r\nb\r\n\r\nc\rd",
    "newline first and last": "\n\na\n",
    "single character": "a",
    "empty": "",
}


def odd_texts() -> dict[str, str]:
    """Text by name; some 170 of them, always the same."""
    texts = dict(_WORDS)
    for count in range(1, 41):
        texts[f"{count} newlines"] = "a" + "\n" * count + "b"
        texts[f"{count} spaces"] = "a" + " " * count + "b"
    for count in (1, 2, 3, 7, 8, 16, 31):
        texts[f"{count} tabs"] = "a" + "\t" * count + "b"
        texts[f"{count} newlines with spaces between"] = "\n ".join(["a"] * (count + 1))
        texts[f"indent of {count}"] = "\n".join(" " * count + line for line in ("if x:", "  y"))
    texts["every text in one"] = "\n".join(_WORDS.values())
    return texts
