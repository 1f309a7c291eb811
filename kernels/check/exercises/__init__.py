"""The exercises, a file each: the equation, the calls, the properties with what each catches, and the known mistakes."""
