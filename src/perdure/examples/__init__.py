"""Programs on the public API, with their data. `expenses` is the one to read; `perdure demo` runs and kills
it.
"""
