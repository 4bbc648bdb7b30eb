package v1alpha1

// Log says what the pods log. No level logs a payload or a secret.
type Log struct {
	// level is the lowest level that is logged: debug (also each failed delivery),
	// info, warn (what a person should see, such as a dead event) or error. A change
	// rolls the pods. Defaults to info.
	// +optional
	// +kubebuilder:default=info
	Level LogLevel `json:"level,omitempty"`
}

// LogLevel is how much is logged.
// +kubebuilder:validation:Enum=debug;info;warn;error
type LogLevel string

const (
	// LogDebug also logs each failed delivery.
	LogDebug LogLevel = "debug"
	// LogInfo logs what happens to the dispatcher as a whole.
	LogInfo LogLevel = "info"
	// LogWarn logs what a person should see.
	LogWarn LogLevel = "warn"
	// LogError logs what stops the dispatcher.
	LogError LogLevel = "error"
)
