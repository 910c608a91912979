"""What would make a job faster: remedies that can be tried, what they should gain, and what they gained."""
