"""One file, one form: a Report as text, JSON or Markdown."""
