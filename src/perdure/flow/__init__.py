"""What people write workflows with: workflow functions, steps, questions, idempotent effects, recorded values."""
