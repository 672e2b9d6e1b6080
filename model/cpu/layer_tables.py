"""What the kernel of all layers reads of a model: addresses and sizes in two tables of integers.

A model has L layers; row L of both tables is the last norm and the head. The tables of an adapter list are those of the
base model with its changes in them.
"""

QUERIES, KEYS, VALUES, OUTPUT, GATE, UP, DOWN = range(7)
"""Second index of the table of products (L + 1, 7, fields): the module. In row L, the first is the head."""
HEAD = 0

WEIGHT, BITS, OUTPUTS, BLOCKS, BIAS, A, A_TILES, B, GAIN, OFFSET = range(10)
"""Fields of a product y = gain ⊙ (W x + bias) + offset + B A x. Addresses are 0 where there is nothing.

WEIGHT, A: of the memory of a `BlockWeight`, A of 8 bits; BITS of W's codes; OUTPUTS: features of y; BLOCKS: of x; BIAS,
GAIN, OFFSET: float32, room for whole sixteens; A_TILES: of sixteen ranks; B: as rank_products.py packs it. The A
of modules that read the same x follow each other.
"""
NUM_PRODUCT_FIELDS = 10

ATTENTION_NORM, Q_NORM, K_NORM, ATTENTION_OUT_NORM, MLP_NORM, MLP_OUT_NORM = range(6)
WINDOW, IS_LOCAL, KEY_CACHE, VALUE_CACHE = range(6, 10)
"""Fields of a layer (L + 1, fields): addresses of float32 weights; 0 for no window; which rotary table; the caches.

In row L, ATTENTION_NORM is the last norm.
"""
NUM_LAYER_FIELDS = 10
