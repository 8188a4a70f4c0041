"""What a supervisor and its workers share: the frames between them and the board they both see."""
