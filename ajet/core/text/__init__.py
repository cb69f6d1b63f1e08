"""Text that people see: values as text, secrets left out, errors in one line, the terminal."""
