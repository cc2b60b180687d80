from hypothesis import HealthCheck, settings

# A busy machine is no failure of a law.
settings.register_profile("wire", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("wire")
