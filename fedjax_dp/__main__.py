"""python -m fedjax_dp"""

import sys

from fedjax_dp.cli import main

sys.exit(main())
