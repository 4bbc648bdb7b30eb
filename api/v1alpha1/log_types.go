package v1alpha1

// Log says what the pods log. No level logs a payload or a secret.
type Log struct {
	// level is the lowest level that is logged: Debug (also each failed delivery),
	// Info, Warn (what a person should see, such as a dead event) or Error. A change
	// rolls the pods. Defaults to Info.
	// +optional
	// +kubebuilder:default=Info
	Level LogLevel `json:"level,omitempty"`
}

// LogLevel is how much is logged.
// +kubebuilder:validation:Enum=Debug;Info;Warn;Error
type LogLevel string

const (
	// LogDebug also logs each failed delivery.
	LogDebug LogLevel = "Debug"
	// LogInfo logs what happens to the dispatcher as a whole.
	LogInfo LogLevel = "Info"
	// LogWarn logs what a person should see.
	LogWarn LogLevel = "Warn"
	// LogError logs what stops the dispatcher.
	LogError LogLevel = "Error"
)
