"""Import the package `epochmeter` where only this module's folder is on the path.

The package's own parent may be the site-packages of another Python, whose modules must not be imported.
"""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location

PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

spec = spec_from_file_location(__name__, os.path.join(PACKAGE, "__init__.py"), submodule_search_locations=[PACKAGE])
assert spec
assert spec.loader
package = sys.modules[__name__] = module_from_spec(spec)  # the import statement returns it instead of this module
spec.loader.exec_module(package)
