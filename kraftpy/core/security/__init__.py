"""Who may do what: principals, and the rules about them."""
