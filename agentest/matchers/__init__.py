"""The words for values: what stands in the place of a value where more than one will do."""
