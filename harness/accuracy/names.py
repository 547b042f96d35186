"""Names by the hundred, none twice: everyday nouns, and made-up proper names of two nouns.

Their first tokens differ in most tokenizers. Small models take names that begin alike for one another: in a JSON object
of 300 to 500 tokens SmolLM2-135M found the values of 5 of 6 nouns, and of 3 of 6 names made of syllables.
"""

import random
from collections.abc import Iterator, Sequence

_WORDS = """
anchor apple apron arrow autumn bacon badge balcony bamboo banana barrel basket beach bean bell bench berry bird
blanket blossom board boat bone book boot bottle bowl box branch brass bread brick bridge broom bucket bull butter
button cabbage cabin cable cactus cake camel candle canoe canyon carpet carrot castle cave cedar cellar chain chair
chalk cheese cherry chess chicken chimney church circle clay cliff clock cloud clover coal coat coffee coin copper
coral corn cotton cradle crane creek cricket crown crystal cup curtain daisy dawn deer desert diamond dolphin donkey
door dragon drum duck dust eagle engine envelope falcon farm feather fence fern ferry field finger fire flag flame
flood flour flower flute fog forest fork fountain fox frog frost fruit garden garlic gate ghost giant ginger glacier
glass globe glove goat gold goose grain grape grass gravel guitar hammer harbor harp hat hawk hazel helmet hen herb
hill honey hook horn horse hotel island ivory jacket jar jewel juice jungle kettle key kitchen kite knife ladder lake
lamp lantern leaf leather lemon letter library lily lime linen lion lizard lobster lock log magnet mango map maple
marble market mask meadow melon metal milk mill mint mirror monkey moon mosque moss mountain mouse mud museum mushroom
nail needle nest nickel night noodle north nurse oak oasis ocean olive onion orange orchard orchid otter oven owl
oyster paddle paint palace palm panda paper parrot path peach peanut pearl pebble pencil pepper piano pigeon pillow
pilot pine pipe planet plate plum pocket poet pond pony potato prince pumpkin puppet puzzle queen quilt rabbit radio
rail rain ranch raven ribbon rice ring river robin rocket roof rope rose ruby rug saddle sail salad salmon salt sand
satin scarf school scissors seal seed shadow shark sheep shell ship shirt shoe shovel signal silk silver sister ski
sky slope smoke snail snake snow soap sock soup spider spoon spring square stable stairs star station steam steel
stone storm stove straw street sugar summer sun swan sword table tailor tank teapot temple tent thread throne thunder
tiger timber tin toast tobacco tomato torch tower town toy tractor train treasure tree trumpet tulip tunnel turkey
turtle umbrella valley vase velvet village vine violin wagon wall walnut water wave whale wheat wheel whistle willow
window wine winter wolf wood wool yarn zebra
"""
WORDS = tuple(_WORDS.split())
"""Everyday nouns, none twice."""


def distinct(nouns: Sequence[str], join: str = "-") -> Iterator[str]:
    """The nouns, and when they are used up pairs of them."""
    yield from nouns
    yield from pairs(nouns, join)


def pairs(nouns: Sequence[str], join: str = "") -> Iterator[str]:
    """Pairs of nouns: each noun once as the first before any comes again, and neighbours have no noun in common."""
    count = len(nouns)
    for step in (*range(count // 2, count), *range(1, count // 2)):
        yield from (f"{noun}{join}{nouns[(at + step) % count]}" for at, noun in enumerate(nouns))


def shuffled(rng: random.Random) -> list[str]:
    """All nouns in an order drawn from a seed."""
    return rng.sample(WORDS, len(WORDS))
