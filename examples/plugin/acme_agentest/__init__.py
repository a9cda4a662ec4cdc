"""What Agentest needs to know about Acme's assistants."""
