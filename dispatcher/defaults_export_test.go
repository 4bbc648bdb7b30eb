package dispatcher

// WithDefaults is for defaults_test.go, which cannot be in this package: it imports package config.
var WithDefaults = Config.withDefaults
