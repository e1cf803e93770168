"""Studies of one method or one kind of input, with the files of results that their pages show."""
