"""The OpenAPI document, and the types that it is made of."""
