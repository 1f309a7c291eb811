"""What runs inside the sandbox: it loads a submission's answers and performs the calls that the judge asks for.

Nothing here knows an expected value, a seed, a tolerance or a point.
"""
