"""The exercises, one file each: the equation, its calls property by property, and what known mistakes would give."""
