package spec

// BackoffStrategy is how the delay between attempts grows.
// +kubebuilder:validation:Enum=Exponential;Multiplier;PowerOfTwo;Linear
type BackoffStrategy string

const (
	// BackoffExponential doubles, with equal jitter.
	BackoffExponential BackoffStrategy = "Exponential"
	// BackoffMultiplier grows by a chosen factor, with symmetric jitter.
	BackoffMultiplier BackoffStrategy = "Multiplier"
	// BackoffPowerOfTwo doubles from 1 second up to 1024, without jitter.
	BackoffPowerOfTwo BackoffStrategy = "PowerOfTwo"
	// BackoffLinear grows by base each time, without jitter.
	BackoffLinear BackoffStrategy = "Linear"
)
