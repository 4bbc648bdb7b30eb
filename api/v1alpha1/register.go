package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is outbox.dev/v1alpha1.
var GroupVersion = schema.GroupVersion{Group: "outbox.dev", Version: "v1alpha1"}

// AddToScheme registers this package's kinds in a scheme. It fails when the scheme has another type of that name.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &OutboxDispatcher{}, &OutboxDispatcherList{}, &Outbox{}, &OutboxList{},
		&DeadLetterReplay{}, &DeadLetterReplayList{}, &OutboxConsumer{}, &OutboxConsumerList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
