"""One request, from text to text: an answer of a chat, a completion at a cursor."""
