"""What the commands do, one file for each group of them."""
