"""The methods by name, without torch; others as `package.module:NAME` (docs/add_a_method.md)."""

from nemo_algos.methods.apmpo import APMPO
from nemo_algos.methods.cispo import CISPO
from nemo_algos.methods.ema_baseline import EMA_BASELINE
from nemo_algos.methods.erpo import ERPO
from nemo_algos.methods.etr import ETR
from nemo_algos.methods.gdpo import GDPO
from nemo_algos.methods.gmpo import GMPO
from nemo_algos.methods.gpg import GPG
from nemo_algos.methods.grpo import GRPO
from nemo_algos.methods.gspo import GSPO
from nemo_algos.methods.method import Method
from nemo_algos.methods.quatro import QUATRO
from nemo_algos.methods.spo import SPO

_STUDIED = (ETR, QUATRO, ERPO, APMPO, GRPO, GSPO, GMPO, GPG, CISPO)
METHODS: dict[str, Method] = {m.name: m for m in (*_STUDIED, GDPO, SPO, EMA_BASELINE)}
STUDIED = tuple(m.name for m in _STUDIED)  # each with a page, a config, figures
