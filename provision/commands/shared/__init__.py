"""What commands of several nouns share."""
