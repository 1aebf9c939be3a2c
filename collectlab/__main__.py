from collectlab.cli import main

raise SystemExit(main())
