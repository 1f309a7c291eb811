"""What lesson 53 goes on with, made from notebooks/53_attention_on_hopper.ipynb: see this package."""

def my_turn(group, n, GROUPS):
    parity = (n + 1) % 2 if group == 0 else n % 2
    following = (group + 1) % GROUPS
    return parity, following


def items_of(program, items, programs):
    rounds = -(-items // programs)
    places = [programs - 1 - program if turn % 2 else program for turn in range(rounds)]
    mine = [turn * programs + place for turn, place in enumerate(places)]
    return [item for item in mine if item < items]
