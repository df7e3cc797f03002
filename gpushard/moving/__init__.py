"""Where an array lies that moves on while it is read, which any reader has to know."""
