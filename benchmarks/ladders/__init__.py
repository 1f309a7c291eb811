"""What each lesson's ladder measures: one module a lesson, ``LADDER`` in it."""
