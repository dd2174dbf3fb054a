"""python -m fedjax_dp"""

import sys

from fedjax_dp.tools.cli import main

sys.exit(main())
