"""Texts that tokenizers and templates trip over: those of the model's tests, more of their kinds, and random ones from
a seed. It must not know who reads them."""

import random
from collections.abc import Iterator

from tests.model.texts import TEXTS

_MORE = (
    "\n",
    "\r\n",
    "\t\t\tx = 1;\n\t\t\t\ty = 2;\n",
    " leading and trailing ",
    "two  three   four    spaces     five",
    "line\n\nparagraph\n\n\nthree\r\rcarriage\r\n\r\nboth\x0b\x0c\x85",
    "\u00a0\u2003\u3000 x \u2009\u202f\u205f y\u1680z",
    "don't DON'T I'll we'Ve it'S 'tis ’tis l'été O’Neil",
    "1 12 123 1234 12345 123456 1234567.890 1e-10 0xFF 1_000_000 ①②③ Ⅻ ½ ٣٤٥ ४५६ 𝟘𝟙",
    "<?php echo $x->y['z'] ?? null; // ⇒ #!/usr/bin/env\n#include <stdio.h>\nint main(void) { return 0; }\n",
    "SELECT * FROM t WHERE a <> 'b' AND c >= 1.5; -- done",
    "for (let i = 0; i < n; ++i) { a[i] **= 2; }  /* π≈3.14 */",
    "🙂🙃😀😃 👩🏽‍🚀 🏳️‍🌈 ❤️ ☺ 🇯🇵🇰🇷 1️⃣ ©️™",
    "漢字かな交じり文、カタカナ。全角ＡＢＣ１２３！？「括弧」 半角ｶﾀｶﾅ",
    "中文：你好，世界！“引号”——破折号…… 𠮷𡈽",
    "한글 자모 ㄱㄴㄷ 가각 \u1112\u1161\u11ab",
    "ไทยไม่มีวรรค हिन्दी क्षत्रिय தமிழ் বাংলা ગુજરાતી ខ្មែរ မြန်မာ",
    "עִבְרִית مُحَمَّد فارسی‌نیم‌فاصله اردو",
    "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!",
    "e\u0301 é A\u030a Å \u212b \ufb01 ﬁ ﬀ ① K (Kelvin) ſ ß ẞ İ ı ǅ ǆ",
    "\u0344 \u0958 \u2126 \uf900 \U0002f800",
    "\u200b\u200c\u200d\u2060\ufeff\u00ad\u202e reversed \u202c",
    "\ufffd\ufffe\uffff\U0010ffff\ue000",
    "_under_score__ --dash-- ==eq== ~~tilde~~ `code` **bold** ![x](y) | a | b |",
    "▁ is SentencePiece's space ▁▁▁x Ġ is GPT-2's Ċ <0x0A> <0xFF>",
    "<s>a</s> <unk> <pad> <bos>x<eos> [INST] hi [/INST] <<SYS>>",
    "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n<unused0><table><h1></h1>",
    "<|im_start|>system\nYou are.<|im_end|>\n<|im_start|> <|im_start|>\n\n<|im_end|><think>\n</think>",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nx<|eot_id|>",
    "a" + "\n" * 40 + "b" + "\t" * 17 + "c" + " \n \n  \n",
    "x" * 5 + "=" * 80 + "#" * 33 + "-" * 7,
    "ABCdefGHIjklMNO camelCaseXMLHttpRequest iPhone McDonald's ÅngströmÉTUDE ǅemal",
)

_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "0123456789٣½²Ⅷ",
    " \t\n\r\u00a0\u2003\u3000\x85\x0b",
    ".,;:!?'\"-_()[]{}<>/\\|@#$%^&*+=~`…—«»¿§",
    "éàüßñøåæœçÉÀǅſİı",
    "e\u0301a\u0308n\u0303\u0327\u1100\u1161\u11a8",
    "日本語中文漢字かなカナ한국어",
    "🙂👩👍🏽‍❤️🇩🇪",
    "абвгдАБВГДαβγδΑΒΓ",
    "עבריתعربيहिन्दीไทย",
    "\x00\x01\x1b\x7f\u200b\u200d\ufeff\ufffd\U000e0001",
)
_WORDS = ("<|im_start|>", "<|im_end|>", "<think>", "<s>", "</s>", "'ll", "'S", "the", "\r\n", "  ", "▁", "<0x41>")


def texts(num_random: int, seed: int = 0) -> Iterator[str]:
    """Yield the fixed texts, then `num_random` random ones, the same for a seed."""
    yield from TEXTS
    yield from _MORE
    rng = random.Random(seed)
    for _ in range(num_random):
        yield "".join(_run(rng) for _ in range(rng.randint(1, 12)))


def _run(rng: random.Random) -> str:
    if rng.random() < 0.15:
        return rng.choice(_WORDS)
    alphabet = rng.choice(_ALPHABETS)
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 6)))


INVALID_BODIES = (
    b'{"content": "half \xe2\x82"}',
    b'{"content": "\xff\xfe"}',
    b'{"content": "surrogate \\ud800"}',
    b'{"content": "pair \\ud83d\\ude42"}',
    b'{"content": "overlong \xc0\xaf"}',
    b'{"content": "open',
    b"",
)
"""Bodies of /tokenize that are not JSON, or not Unicode, and one that is both."""
