import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.databind.ObjectMapper;
import io.cloudevents.CloudEvent;
import io.cloudevents.kafka.CloudEventDeserializer;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Reads CloudEvents with the SDK for Java and Kafka's own client, and writes each as a line of JSON: Reader.java BROKER TOPIC N. */
public class Reader {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", "java");
        settings.put("auto.offset.reset", "earliest");
        CloudEventDeserializer events = new CloudEventDeserializer();
        try (KafkaConsumer<String, byte[]> consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(args[1]));
            for (int left = Integer.parseInt(args[2]); left > 0; ) {
                var records = consumer.poll(Duration.ofSeconds(60));
                if (records.isEmpty()) {
                    throw new IllegalStateException("no record of " + args[1]);
                }
                for (ConsumerRecord<String, byte[]> record : records) {
                    tell(events.deserialize(record.topic(), record.headers(), record.value()), record);
                    left--;
                }
            }
        }
    }

    private static void tell(CloudEvent event, ConsumerRecord<String, byte[]> record) throws Exception {
        Map<String, String> attributes = new HashMap<>();
        for (String name : event.getAttributeNames()) {
            attributes.put(name, event.getAttribute(name).toString());
        }
        for (String name : event.getExtensionNames()) {
            attributes.put(name, event.getExtension(name).toString());
        }
        Map<String, Object> line = new HashMap<>(); // its byte[] is written in base64
        line.put("attributes", attributes);
        line.put("data", data(event, record));
        line.put("key", record.key());
        System.out.println(JSON.writeValueAsString(line));
    }

    /** The data's bytes. Of a structured message they are cut out of it, since the SDK rounds numbers, and are what it has read. */
    private static byte[] data(CloudEvent event, ConsumerRecord<String, byte[]> record) throws Exception {
        byte[] read = event.getData() == null ? new byte[0] : event.getData().toBytes();
        var type = record.headers().lastHeader("content-type");
        if (type == null || !new String(type.value()).startsWith("application/cloudevents")) {
            return read;
        }
        byte[] message = record.value();
        try (JsonParser parser = JSON.createParser(message)) {
            parser.nextToken(); // the message's brace
            while (parser.nextToken() == JsonToken.FIELD_NAME) {
                boolean found = parser.currentName().equals("data");
                parser.nextToken();
                int begin = (int) parser.currentTokenLocation().getByteOffset();
                parser.skipChildren();
                parser.finishToken();
                if (found) {
                    byte[] data = Arrays.copyOfRange(message, begin, (int) parser.currentLocation().getByteOffset());
                    if (!JSON.readTree(data).equals(JSON.readTree(read))) {
                        throw new IllegalStateException("the SDK read other data");
                    }
                    return data;
                }
            }
        }
        throw new IllegalStateException("the message has no data");
    }
}
