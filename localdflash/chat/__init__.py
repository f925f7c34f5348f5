"""A chat without its screen: messages, chats on disk, attachments, answers, changes to files."""
