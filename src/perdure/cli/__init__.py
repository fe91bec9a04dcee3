"""The command `perdure`: parse, call, render. No SQL, nothing of the engine, no answer by default."""
