"""What each API takes rights for; `guards` says how, the modules `..._guards` what."""
