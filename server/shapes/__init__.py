"""What bodies look like: the types that the OpenAPI document is made of, and that answers are checked against."""
