"""What several test files need: real servers, and nothing that stands in for our own code."""
