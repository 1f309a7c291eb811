"""What tells by identities whether a mod is as it was; a ``Fingerprint`` describes all of it anew."""

import weakref

from kernels.flex_attention.mods import switches

MISSING = object()


class Guards:
    """What a fingerprint has read: while it all is the same, so is the fingerprint. It keeps no longer than its mod.

    possible: False where something was read whose changes identities do not show, such as an object's attributes.
    """

    def __init__(self):
        self.possible = True
        self.functions, self.cells, self.names, self.tensors, self.lists, self.dicts = [], [], [], [], [], []
        self.switches, self.in_force = (), switches.in_force()

    def function(self, f, names):
        """A function whose code names these globals."""
        keywords = f.__kwdefaults__
        self.functions.append((weakref.ref(f), f.__code__, f.__defaults__, keywords))  # one of them is the mod
        if keywords:
            self.dict(keywords)
        self.names += [(f.__globals__, name, f.__globals__.get(name, MISSING)) for name in names]
        for cell in f.__closure__ or ():
            try:
                self.cells.append((cell, cell.cell_contents))
            except ValueError:
                self.possible = False

    def attribute(self, x, name):
        """Something that stands in x's own dict."""
        self.names.append((vars(x), name, vars(x)[name]))

    def tensor(self, t):
        """A tensor's layout, which can be changed in place."""
        self.tensors.append((t, t.shape, t.stride(), t.dtype, t.requires_grad, t.device))

    def list(self, x):
        """A list's items."""
        self.lists.append((x, tuple(map(id, x)), tuple(x)))

    def dict(self, x):
        """A dict's items."""
        self.dicts.append((x, tuple((id(k), id(v)) for k, v in x.items()), tuple(x.items())))

    def switch(self, names):
        """Torch's switches among these names, and how they are set."""
        self.switches = switches.named(names)
        return self.switches
