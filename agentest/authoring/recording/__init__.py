"""What real tools answered, written as mocks that a person keeps: `agentest record-tools`."""
