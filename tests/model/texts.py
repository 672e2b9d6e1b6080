"""Texts that tokenizers trip over."""

TEXTS = (
    "",
    " ",
    "   \n\n\t  x",
    "Hello, world! It's 3.14159 o'clock; they'LL've gone.",
    "A year: 2024, a price: $1,234,567.89, half: ½, squared: ², Roman: Ⅷ, Arabic: ٣٤٥.",
    "def f(x: int) -> str:\n\treturn f'{x:>08d}'  # ünïcödé\r\n\r\n\r\n",
    "日本語のテキストと中文字符，한국어도 있습니다。",
    "👩‍👩‍👧‍👦 family, 🇩🇪 flag, 👍🏽 thumb, e\u0301 combining, ﬁ ligature",
    "\x00\x01\x1f\x7f\x80\u200b\u2028\ufeff controls",
    "Ελληνικά, русский, עברית, العربية, हिन्दी, ไทย",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|><|im_start|> <|im_end|>x<|endoftext|>y <|im_star",
    "https://example.org/a?b=c&d=%20#e  <div class='x'>&amp;</div>",
    "a" * 300 + " " * 70 + "\n" * 9,
    "ZWJ\u200dand\u00a0no-break\u3000ideographic spaces",
    "MixedCASEWords camelCaseWords SCREAMING_SNAKE ÀÉÎ",
)
