"""The package installs with pip from the tree, with nothing fetched, and works from where it is installed."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import venv

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

SCRIPT = """
import torch, tensortier_torch
print(tensortier_torch.__file__)
layer = torch.nn.Linear(64, 64)
for _ in range(2):
    layer(torch.randn(512, 64)).pow(2).mean().backward()
print(tensortier_torch.install().report()["out_bytes"])
"""


class Install(unittest.TestCase):
    def test_into_an_environment_that_sees_the_systems_torch(self):
        with tempfile.TemporaryDirectory() as folder:
            # pip builds where the sources are.
            tree, home = os.path.join(folder, "python"), os.path.join(folder, "venv")
            shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
            venv.create(home, system_site_packages=True, with_pip=False)
            python = os.path.join(home, "bin", "python")
            pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps",
                   "--no-build-isolation", "--disable-pip-version-check", tree]
            done = subprocess.run(pip, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            site = subprocess.run(
                [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
                capture_output=True, text=True, check=True).stdout.strip()
            # As `tensortier run --offload-activations` does where TENSORTIER_PYTHON names this folder.
            environment = dict(os.environ, TENSORTIER_OFFLOAD="1", TENSORTIER_OFFLOAD_LEAST="1024")
            environment["PYTHONPATH"] = os.path.join(site, "tensortier_torch", "site")
            done = subprocess.run([python, "-c", SCRIPT], env=environment, cwd=folder, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            where, moved = done.stdout.split()
            self.assertTrue(where.startswith(site), where)
            self.assertGreaterEqual(int(moved), 2 * 512 * 64 * 4)


if __name__ == "__main__":
    unittest.main()
