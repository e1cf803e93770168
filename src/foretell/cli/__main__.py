from foretell.cli import main

main()
