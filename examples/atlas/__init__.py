"""Atlas: a generated world of invented places, people and things, and a small policy that searches it."""
