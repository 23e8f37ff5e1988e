"""What more devices than there are would do, from recorded steps and from arithmetic."""
