from decision_proxy.cli import main

raise SystemExit(main())
